-- Give back jobs that were claimed and not started, to the front. ARGV[1]: list of {id, token}. How many there were.

local asked, released = given(1), 0
for at = #asked, 1, -1 do
    local job = load(asked[at][1])
    if holds(job, asked[at][2]) then
        give_back(job)
        released = released + 1
    end
end
return released
