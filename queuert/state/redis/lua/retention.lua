-- name: prune
-- Deletes closed chains: first those that have expired, then those that a policy ({type, status, age, count}) does not
-- keep, oldest first. ARGV[1]: {policies, limit, phase, stayed}. Chains that must stay are skipped: `stayed` is their
-- number in the phase so far. Returns the next cursor and the ids.

local params, pruned, looked = decoded(1), {}, 0
local phase, stayed = params.phase, params.stayed

local function prune(chain)
    if is_needed(chain) then return false end
    prune_chain(chain)
    pruned[#pruned + 1] = chain
    return true
end

-- Reads the next chain; false at the end of the phase.
local function expired()
    local id = call('ZRANGEBYSCORE', P .. 'expires', '-inf', text(NOW), 'LIMIT', stayed, 1)[1]
    if not id then return false end
    if not prune(id) then stayed = stayed + 1 end
    return true
end

local function not_kept(policy)
    local key = P .. 'closed:' .. pair(policy.type, policy.status)
    local id = call('ZRANGE', key, stayed, stayed)[1]
    local first = id and load(id)
    if not first then return false end
    local newer = call('ZCARD', key) - stayed - 1
    local too_many = policy.count and newer >= policy.count
    if not too_many and (not policy.age or first.created > NOW - policy.age) then return false end
    local goes = too_many or first.closed <= NOW - policy.age
    if first.expires or not goes or not prune(id) then stayed = stayed + 1 end
    return true
end

while phase <= #params.policies and looked < params.limit do
    local more
    if phase == 0 then more = expired() else more = not_kept(params.policies[phase]) end
    if more then
        looked = looked + 1
    else
        phase, stayed = phase + 1, 0
    end
end
return {phase <= #params.policies and {phase, stayed} or 0, pruned}

-- name: update_result_ttl
-- Lets closed chains expire some time from now. ARGV[1]: {ids, ttl}. Returns the result of each.

local params, answer = decoded(1), {}
for at, id in ipairs(params.ids) do
    local first = load(id)
    if not is_first(first) or has_expired(first) then
        answer[at] = 'not_found'
    elseif first.chain_status == 'open' then
        answer[at] = 'open'
    else
        put(first, {expires = NOW + params.ttl})
        call('ZADD', P .. 'expires', first.expires, id)
        answer[at] = 'updated'
    end
end
return answer
