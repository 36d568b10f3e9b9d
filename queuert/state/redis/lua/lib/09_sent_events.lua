-- Steps as they are stored, and events that are sent to chains until a step takes them.
--
-- s:{job}     LIST of steps: name, attempt, when it was recorded and when it ends, of a wait also the name of its event
--             and when it was answered, of a phase instead `false` twice, and when it began; as JSON; a newline; the
--             result
-- ve:{chain}  LIST of events that nothing has taken: name and id as JSON, the oldest first
-- vp:{chain}  HASH of payloads by the ids of events; empty once the event is taken

local MAX_EVENTS, MAX_EVENT_BYTES = 1000, 16777216

-- Reads the header of a step; nil if there is no step of this number.
local function step_at(job_id, position)
    local entry = call('LINDEX', P .. 's:' .. job_id, position)
    return entry and cjson.decode(entry:match('^[^\n]*')) or nil
end

-- Finds the oldest event of a name that a chain keeps: its entry in the list and its id.
local function kept_event(chain, name)
    for _, entry in ipairs(call('LRANGE', P .. 've:' .. chain, 0, -1)) do
        local event = cjson.decode(entry)
        if event[1] == name then return entry, event[2] end
    end
    return nil
end

-- Takes the oldest event of a name and returns its payload; nil if there is none.
local function take_event(chain, name)
    local entry, id = kept_event(chain, name)
    if not entry then return nil end
    local payload = call('HGET', P .. 'vp:' .. chain, id)
    call('LREM', P .. 've:' .. chain, 1, entry)
    call('HSET', P .. 'vp:' .. chain, id, '')
    return payload
end

-- Makes a job due that was snoozed until the end of its wait, if the event is there. Returns whether it was.
local function wake_receiver(job)
    local step = job.status == 'scheduled' and step_at(job.id, -1)
    local waits = step and step[6] == '' and tonumber(step[4]) == job.due
    if not waits or not kept_event(job.chain, step[5]) then return false end
    move(job, 'ready', {due = NOW})
    return true
end
