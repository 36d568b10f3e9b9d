-- name: record_heartbeat
-- Records that a worker is alive. ARGV[1]: {ttl, uptime, record, limits}. Also deletes workers whose heartbeat has
-- expired.
--
-- workers is a HASH of the last heartbeats, workers:until a ZSET of when they expire, limits a HASH of the limits of job
-- types.

local params = decoded(1)
local id, record = params.record.id, params.record
local stored = call('HGET', P .. 'workers', id)
record.started_at = stored and cjson.decode(stored).started_at or text(NOW - params.uptime)
record.seen_at = text(NOW)
call('HSET', P .. 'workers', id, cjson.encode(record))
call('ZADD', P .. 'workers:until', NOW + params.ttl, id)
for _, type in ipairs(record.job_types) do
    local limits = params.limits[type]
    if limits then call('HSET', P .. 'limits', type, cjson.encode(limits)) else call('HDEL', P .. 'limits', type) end
end
for _, other in ipairs(call('ZRANGEBYSCORE', P .. 'workers:until', '-inf', text(NOW), 'LIMIT', 0, 100)) do
    if other ~= id then
        call('ZREM', P .. 'workers:until', other)
        call('HDEL', P .. 'workers', other)
    end
end
return 1

-- name: remove_worker
-- Deletes a worker that has stopped. ARGV[1]: {id}.

local id = decoded(1)[1]
call('ZREM', P .. 'workers:until', id)
return call('HDEL', P .. 'workers', id)

-- name: list_workers
-- Reads the last heartbeats of the workers that are alive.

local answer = {}
for at, id in ipairs(call('ZRANGEBYSCORE', P .. 'workers:until', '(' .. text(NOW), '+inf')) do
    answer[at] = call('HGET', P .. 'workers', id)
end
return answer
