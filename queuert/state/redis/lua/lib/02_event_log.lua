-- The event log: an event for each transition of a job, written by the script that makes the transition.
--
-- events     STREAM of entries of up to a hundred events. The id of an entry is `number-0`, with the number of its first
--            event: the events of a log are numbered without gaps. Its field `e` is JSON: the time, and a list of
--            groups of events that follow each other and differ in their jobs alone. A group is a list of kind,
--            status, type, type of the chain, index, attempt, when it started, worker, error, progress, and a list with
--            three values for each event: the job, its chain if that is another id, and when the job is due.
-- event_log  HASH `id` of the log, `last` number, `days` and `most` events to keep, `level` of all types, `level:{type}`

local EVENTS_OF_ENTRY, MOST_EVENTS, KEPT_DAYS = 100, 250000, 14
local TERMINAL = {
    completed = true, continued = true, failed = true, cancelled = true, retried_by_hand = true, deleted = true,
    stale = true,
}

local LOG -- What the hash says, once an event has asked for it.
local ENTRIES, COUNT = {}, 0 -- The events of this script, written at its end.
local GROUPS, GROUP -- Of the last entry: all, and the last one.

local function level_of(type)
    if not LOG then
        local found = call('HMGET', P .. 'event_log', 'last', 'level', 'level:' .. type)
        LOG = {last = found[1], level = found[2] or 'all'}
        LOG.levels = {[type] = found[3] or LOG.level}
    end
    local level = LOG.levels[type]
    if not level then
        level = call('HGET', P .. 'event_log', 'level:' .. type) or LOG.level
        LOG.levels[type] = level
    end
    return level
end

-- Adds an event of a job as it is now, if the level of its type says so.
local function log_event(job, kind, status, worker, error, progress)
    local level = level_of(job.type)
    if level ~= 'all' and not (level == 'terminal' and (TERMINAL[kind] or (kind == 'lease_expired' and status == 'failed')))
    then
        return
    end
    if COUNT % EVENTS_OF_ENTRY == 0 then
        GROUPS, GROUP = {}, nil
        ENTRIES[#ENTRIES + 1] = GROUPS
    end
    COUNT = COUNT + 1
    worker, error, progress = worker or '', error or '', progress or ''
    local index, attempt = text(job.index), text(job.attempt)
    local started = job.started and text(job.started) or ''
    local group = GROUP
    if not group or group[1] ~= kind or group[2] ~= status or group[3] ~= job.type or group[4] ~= job.chain_type
        or group[5] ~= index or group[6] ~= attempt or group[7] ~= started or group[8] ~= worker
        or group[9] ~= error or group[10] ~= progress
    then
        group = {
            kind, status, job.type, job.chain_type, index, attempt, started, worker, error, progress, {},
        }
        GROUP = group
        GROUPS[#GROUPS + 1] = group
    end
    local jobs = group[11]
    local at = #jobs
    jobs[at + 1] = job.id
    jobs[at + 2] = job.chain ~= job.id and job.chain or ''
    jobs[at + 3] = text(job.due)
end

-- Begins a log, whose numbers are its own. Readers of another log are told by its id. Returns the id.
local function begin_log()
    local id = redis.sha1hex(P .. text(now_us()) .. cjson.encode(ENTRIES)):sub(1, 16)
    call('DEL', P .. 'events')
    call('HSET', P .. 'event_log', 'id', id, 'last', 0)
    return id
end

-- Drops the oldest events beyond the number to keep, by the thousand. The server drops whole nodes of the stream alone,
-- so that this takes little time.
local function trim_log(last, added)
    if math.floor(last / 1000) == math.floor((last - added) / 1000) then return end
    local oldest = last + 1 - tonumber(call('HGET', P .. 'event_log', 'most') or MOST_EVENTS)
    if oldest > 1 then call('XTRIM', P .. 'events', 'MINID', '~', text(oldest)) end
end

-- Writes the events of the script.
local function write_events()
    if COUNT == 0 then return end
    if not LOG.last then begin_log() end
    local last = tonumber(LOG.last or 0)
    for place, groups in ipairs(ENTRIES) do
        local events = '[' .. text(NOW) .. ',' .. cjson.encode(groups) .. ']'
        local added = redis.pcall('XADD', P .. 'events', text(last + 1) .. '-0', 'e', events)
        if type(added) == 'table' and (added.err:find('equal or smaller', 1, true) or added.err:find('WRONGTYPE', 1, true))
        then
            -- The hash was lost, or has an older number than the stream, after an eviction or a manual edit.
            begin_log()
            last = 0
            added = redis.pcall('XADD', P .. 'events', '1-0', 'e', events)
        end
        if type(added) == 'table' then error(added.err) end
        last = last + math.min(EVENTS_OF_ENTRY, COUNT - (place - 1) * EVENTS_OF_ENTRY)
    end
    call('HSET', P .. 'event_log', 'last', text(last))
    trim_log(last, COUNT)
end
