-- Read chains. ARGV[1]: {ids, expired, portion}: with those that have expired, or as if they were gone. Answers for each
-- with its first job's facts and its last one's ending. With a portion, in bytes, only with those that have closed, as
-- many as fit, one at least; of the others with the status alone.

local answer = {}
local asked = given(1)
local size = 0
for at, id in ipairs(asked.ids) do
    local first = load(id)
    if not is_first(first) or (has_expired(first) and not asked.expired) then
        answer[at] = 0
    elseif asked.portion and (first.chain_status == 'open' or size >= asked.portion) then
        answer[at] = first.chain_status
    else
        local tail = tail_of(id)
        answer[at] = {
            id, first.type, first.chain_status, call('GET', P .. 'i:' .. id), call('GET', P .. 'o:' .. tail.id),
            call('GET', P .. 'e:' .. tail.id), tail.type, text(first.created),
            first.closed and text(first.closed) or false, tail.id,
            first.expires and text(first.expires) or false, call('GET', P .. 'a:' .. id),
        }
        for _, payload in ipairs({4, 5, 6, 12}) do size = size + #(answer[at][payload] or '') end
    end
end
return answer
