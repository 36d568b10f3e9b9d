-- End the last jobs of chains over their heads, all or none. ARGV[1]: list of {chain, tail, output, continuation};
-- ARGV[2...]: payloads.

local asked, ids, fits = given(1), {}, true
for at, one in ipairs(asked) do ids[at] = one.chain end
local chains, missing = chains_of(ids)
if missing then return refusal('chain_not_found', missing) end
for _, one in ipairs(asked) do
    local chain = chains[one.chain]
    fits = fits and chain.first.chain_status == 'open' and chain.tail.id == one.tail
end
local answer = {}
if not fits then
    for at, one in ipairs(asked) do
        local chain = chains[one.chain]
        answer[at] = met(chain.first, chain.tail, chain.tail.status, chain.first.chain_status, false)
    end
    return answer
end
local new = {}
for _, one in ipairs(asked) do
    local following = one.continuation
    if following then
        if new[following.id] or load(following.id) then return refusal('id_conflict', following.id) end
        new[following.id] = true
        local absent = missing_blocker(following)
        if absent then return refusal('chain_not_found', absent) end
    end
end
local told_of = {}
for at, one in ipairs(asked) do
    local first, tail, readied = chains[one.chain].first, load(one.tail), {}
    if tail.id == first.id then first = tail end
    local met_as, following = tail.status, one.continuation
    if following then
        end_outside(tail, 'continued', {next = following.id})
        if one.output then call('SET', P .. 'o:' .. tail.id, ARGV[one.output]) end
        local started = write_job(following, NOW, tail)
        if started.status ~= 'blocked' then readied[started.type] = true end
    else
        end_outside(tail, 'completed', {})
        call('SET', P .. 'o:' .. tail.id, ARGV[one.output])
        close_chain(first.id == tail.id and tail or load(first.id), 'completed', readied)
    end
    answer[at] = met(first, tail, met_as, following and 'open' or 'completed', true, fresh(readied, told_of))
end
return answer
