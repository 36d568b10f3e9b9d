-- name: get_webhook_records
-- Reads the records of a kind: all, or those of these ids. ARGV[1]: {kind, ids}. Returns the id and what is stored of
-- each that exists.

local params, answer = decoded(1), {}
local key = P .. 'webhooks:' .. params.kind
if params.ids then
    for _, id in ipairs(params.ids) do
        local stored = call('HGET', key, id)
        if stored then answer[#answer + 1] = {id, stored} end
    end
    return answer
end
local flat = call('HGETALL', key)
for at = 1, #flat, 2 do answer[#answer + 1] = {flat[at], flat[at + 1]} end
return answer

-- name: put_webhook_record
-- Writes or deletes a record, if it has the expected tag, or does not exist without one. ARGV[1]: {kind, id, tag,
-- expected}; ARGV[2]: its body, none to delete it. A record is stored as its tag, a newline and the body. Returns whether
-- it was written.

local params = decoded(1)
local key = P .. 'webhooks:' .. params.kind
local stored = call('HGET', key, params.id)
if (stored and stored:match('^[^\n]*') or nil) ~= params.expected then return 0 end
if ARGV[2] then
    call('HSET', key, params.id, params.tag .. '\n' .. ARGV[2])
else
    call('HDEL', key, params.id)
end
return 1

-- name: record_webhook_attempts
-- Writes attempts at deliveries. ARGV[1]: the endpoint of each; ARGV[2...]: what is stored of each. Each endpoint has a
-- stream, whose entries are numbered.

for at, endpoint in ipairs(decoded(1)) do
    local number = call('HINCRBY', P .. 'webhook_logs', endpoint, 1)
    call('XADD', P .. 'webhook_log:' .. endpoint, text(number) .. '-1', 'at', text(NOW), 'a', ARGV[at + 1])
end
return 1

-- name: list_webhook_attempts
-- Reads attempts at deliveries to an endpoint, the newest first. ARGV[1]: {endpoint, before, limit}. Returns the number,
-- the time and what is stored of each.

local params, answer = decoded(1), {}
local from = params.before and text(params.before) .. '-0' or '+'
for _, entry in ipairs(call('XREVRANGE', P .. 'webhook_log:' .. params.endpoint, from, '-', 'COUNT', params.limit)) do
    answer[#answer + 1] = {entry[1]:match('^%d+'), entry[2][2], entry[2][4]}
end
return answer

-- name: prune_webhook_attempts
-- Deletes old attempts at deliveries. ARGV[1]: {before, limit}. Returns how many.

local params, pruned = decoded(1), 0
for _, endpoint in ipairs(call('HKEYS', P .. 'webhook_logs')) do
    local stream = P .. 'webhook_log:' .. endpoint
    local old = 0
    for _, entry in ipairs(call('XRANGE', stream, '-', '+', 'COUNT', math.max(params.limit - pruned, 0) + 1)) do
        if tonumber(entry[2][2]) >= NOW - params.age then break end
        old = old + 1
    end
    old = math.min(old, params.limit - pruned)
    if old > 0 then
        pruned = pruned + old
        if old == call('XLEN', stream) then
            call('DEL', stream)
            call('HDEL', P .. 'webhook_logs', endpoint)
        else
            call('XTRIM', stream, 'MAXLEN', '=', call('XLEN', stream) - old)
        end
    end
end
return pruned

-- name: get_chain_attributes
-- Reads the attributes of chains, also of those that have expired and are not pruned yet. ARGV[1]: {ids}. Returns an
-- empty text for one without attributes, and 0 for one that does not exist.

local answer = {}
for at, id in ipairs(decoded(1)) do
    local found = call('HMGET', P .. 'j:' .. id, 'type', 'index')
    local is_chain = found[1] and not found[2]
    answer[at] = is_chain and (call('GET', P .. 'a:' .. id) or '') or 0
end
return answer
