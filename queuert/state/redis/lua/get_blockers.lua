-- The chains that a job waits for, or waited for, in order. ARGV[1]: {id}.

local answer = {}
for _, chain in ipairs(call('ZRANGE', P .. 'bl:' .. given(1)[1], 0, -1)) do
    local first = load(chain)
    if first then
        local tail = tail_of(chain)
        answer[#answer + 1] = {
            chain, first.type, first.chain_status, tail.type,
            first.chain_status == 'completed' and call('GET', P .. 'o:' .. tail.id) or false,
            call('GET', P .. 'e:' .. tail.id),
        }
    end
end
return answer
