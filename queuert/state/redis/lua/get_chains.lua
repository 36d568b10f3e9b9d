-- Read chains. ARGV[1]: {ids, expired}: with those that have expired, or as if they were gone. Answers for each with its first job's facts and its last one's ending.

local answer = {}
local asked = given(1)
for at, id in ipairs(asked.ids) do
    local first = load(id)
    if not is_first(first) or (has_expired(first) and not asked.expired) then
        answer[at] = 0
    else
        local tail = tail_of(id)
        answer[at] = {
            id, first.type, first.chain_status, call('GET', P .. 'i:' .. id), call('GET', P .. 'o:' .. tail.id),
            call('GET', P .. 'e:' .. tail.id), tail.type, text(first.created),
            first.closed and text(first.closed) or false, tail.id,
            first.expires and text(first.expires) or false, call('GET', P .. 'a:' .. id),
        }
    end
end
return answer
