-- Close open chains as cancelled. ARGV[1]: list of ids; ARGV[2]: the error, as stored.

local ids = given(1)
local chains, missing = chains_of(ids)
if missing then return refusal('chain_not_found', missing) end
local done, told_of, answer = {}, {}, {}
for at, id in ipairs(ids) do
    if not done[id] then
        local first = load(id)
        local tail = tail_of(id)
        if first.chain_status ~= 'open' then
            done[id] = met(first, tail, tail.status, first.chain_status, false)
        else
            local met_as, readied = tail.status, {}
            end_outside(tail, 'cancelled', {})
            call('SET', P .. 'e:' .. tail.id, ARGV[2])
            close_chain(tail.id == id and tail or first, 'cancelled', readied)
            done[id] = met(first, tail, met_as, 'cancelled', true, fresh(readied, told_of))
        end
    end
    answer[at] = done[id]
end
return answer
