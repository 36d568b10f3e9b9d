-- name: prune
-- Deletes closed chains: first those that have expired, then those that a policy ({type, status, age, count, stale}) does
-- not keep, oldest first. With `stale`, they first become stale, and are deleted so much later. ARGV[1]: {policies, limit,
-- phase, stayed, before, preview, only}. None is deleted that closed, or became stale, at the time `before` or later. Chains that stay are skipped: `stayed` is their number in the phase so far. With
-- `preview` nothing is changed; with `only`, nothing but what it has: {delete, mark}, with
-- a set of ids each. Returns the next cursor, the ids of
-- deleted chains, and those of chains that became stale.

local params, pruned, stale, looked = decoded(1), {}, {}, 0
local phase, stayed = params.phase, params.stayed

-- Whether readers of the event log need a closed chain no more.
local function is_read(first)
    return not params.before or math.max(first.closed, first.stale or 0) < params.before
end

local function prune(chain)
    if is_needed(chain) then return false end
    if not params.preview then prune_chain(chain) end
    pruned[#pruned + 1] = chain
    return not params.preview
end

local function mark(first)
    if not params.preview then
        put(first, {stale = NOW})
        log_event(first, 'stale', first.status)
    end
    stale[#stale + 1] = first.id
end

-- Drops an id whose first job is gone, by an eviction or a manual edit: it would come first in every round, and nothing
-- after it would be reached. Other jobs that are left of its chain go with it.
local function drop_orphan(key, id)
    if params.preview then
        stayed = stayed + 1
        return true
    end
    if not params.only and not is_needed(id) then prune_chain(id) end
    call('ZREM', key, id)
    return true
end

-- Reads the next chain; false at the end of the phase.
local function expired()
    -- By rank: an offset would walk over all chains that stay, for each of them again.
    local entry = call('ZRANGE', P .. 'expires', stayed, stayed, 'WITHSCORES')
    local id = entry[1]
    if not id or tonumber(entry[2]) > NOW then return false end
    local first = load(id)
    if not first then return drop_orphan(P .. 'expires', id) end
    if is_read(first) and prune(id) then return true end
    stayed = stayed + 1
    return true
end

local function not_kept(policy)
    local key = P .. 'closed:' .. pair(policy.type, policy.status)
    local id = call('ZRANGE', key, stayed, stayed)[1]
    if not id then return false end
    local first = load(id)
    if not first then return drop_orphan(key, id) end
    local newer = call('ZCARD', key) - stayed - 1
    local too_many = policy.count and newer >= policy.count
    if not too_many and (not policy.age or first.created > NOW - policy.age) then return false end
    local action
    if not first.expires and (too_many or first.closed <= NOW - policy.age) then
        if policy.stale and not first.stale then action = 'mark'
        elseif is_read(first) and (not policy.stale or first.stale <= NOW - policy.stale) then action = 'delete' end
    end
    if action and params.only and not params.only[action][id] then action = nil end
    if action == 'mark' then mark(first) end
    if action ~= 'delete' or not prune(id) then stayed = stayed + 1 end
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
return {phase <= #params.policies and {phase, stayed} or 0, pruned, stale}

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
