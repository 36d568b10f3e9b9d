-- Give back all that one claim took, when its answer was lost. ARGV[1]: {holder, token}. How many there were.

local asked, released = given(1), 0
local entries = call('LRANGE', P .. 'p:' .. asked.holder, 0, -1)
for at = #entries, 1, -1 do
    local job = load(entries[at]:match('^%d+:%d+:(.*)$'))
    if holds(job, asked.token) then
        give_back(job)
        released = released + 1
    end
end
return released
