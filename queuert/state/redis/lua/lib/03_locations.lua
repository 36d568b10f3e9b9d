-- The location of a job: exactly one list or set, by its status. Only entering and leaving change it.
--
-- ready      w:{rank}:{type} LIST of "gen:due:id"; a job with a limit key is in the sorted sets of its type and key
-- scheduled  sched:{type} ZSET by due time
-- running    p:{holder} LIST, lease:{type} ZSET by the end of the lease
-- blocked    blocked ZSET
--
-- `gen` is new for every entry into a waiting list. An entry is dead if its job has another `gen` or is not ready; a
-- script that reads one skips it, and drops those before the first job of a list (first_waiting). So a job can leave a
-- long list without a search for its entry.

local SHORT = 128

local function waiting_list(type, rank)
    return P .. 'w:' .. text(rank) .. ':' .. type
end

local function entry_of(job)
    return text(job.gen or 0) .. ':' .. text(job.due) .. ':' .. job.id
end

local function rank_text(rank)
    return string.format('%011.0f:', rank + 5000000000)
end

-- The rank in a text that begins with one.
local function rank_in_text(member)
    return tonumber(member:sub(1, 11)) - 5000000000
end

-- Members that sort as jobs are claimed: by rank, then the longest due, then the first written.
local function keyed_member(job)
    return rank_text(rank_of(job)) .. string.format('%017.0f:%015.0f:', job.due, job.gen) .. job.id
end

-- Returns since when the longest due of the ready jobs of a type with limit keys is due; nil if there is none. The first
-- member of each rank is the longest due of it.
local function oldest_keyed(type)
    local from, since = '-', nil
    while true do
        local member = call('ZRANGEBYLEX', P .. 'kz:' .. type, from, '+', 'LIMIT', 0, 1)[1]
        if not member then return since end
        since = math.min(since or 1 / 0, tonumber(member:sub(13, 29)))
        from = '(' .. member:sub(1, 11) .. ';' -- What comes after the colon that ends the rank.
    end
end

local COUNTS = {}

-- Numbers of jobs by type and status: collected here, and written once at the end of the operation.
local function count(type, status, difference)
    local of_type = COUNTS[type]
    if not of_type then
        of_type = {}
        COUNTS[type] = of_type
    end
    of_type[status] = (of_type[status] or 0) + difference
end

local function write_counts()
    for type, differences in pairs(COUNTS) do
        for status, difference in pairs(differences) do
            if difference ~= 0 and call('HINCRBY', P .. 'n:' .. type, status, difference) == 0 then
                call('HDEL', P .. 'n:' .. type, status)
            end
        end
    end
end

-- The job has its new generation.
local function enter_ready(job, front)
    if job.limit then
        local member = keyed_member(job)
        call('ZADD', P .. 'kz:' .. job.type, 0, member)
        call('ZADD', P .. 'kk:' .. pair(job.type, job.limit), 0, member)
        call('ZADD', P .. 'keys:' .. job.type, 0, job.limit)
        return
    end
    local rank = rank_of(job)
    if call(front and 'LPUSH' or 'RPUSH', waiting_list(job.type, rank), entry_of(job)) == 1 then
        call('ZADD', P .. 'ranks:' .. job.type, rank, text(rank))
    end
end

local function leave_ready(job)
    if job.limit then
        local member, of_key = keyed_member(job), P .. 'kk:' .. pair(job.type, job.limit)
        call('ZREM', P .. 'kz:' .. job.type, member)
        call('ZREM', of_key, member)
        if call('EXISTS', of_key) == 0 then call('ZREM', P .. 'keys:' .. job.type, job.limit) end
        return
    end
    local list = waiting_list(job.type, rank_of(job))
    if call('LLEN', list) <= SHORT or call('LINDEX', list, 0) == entry_of(job) then
        call('LREM', list, 1, entry_of(job))
        if call('EXISTS', list) == 0 then call('ZREM', P .. 'ranks:' .. job.type, text(rank_of(job))) end
    end
end

local function enter_running(job)
    call('RPUSH', P .. 'p:' .. job.holder, entry_of(job))
    call('ZADD', P .. 'lease:' .. job.type, job.leased, job.id)
    if job.limit then call('HINCRBY', P .. 'rk:' .. job.type, job.limit, 1) end
end

local function leave_running(job)
    call('LREM', P .. 'p:' .. job.holder, 1, entry_of(job))
    call('ZREM', P .. 'lease:' .. job.type, job.id)
    if job.limit and call('HINCRBY', P .. 'rk:' .. job.type, job.limit, -1) <= 0 then
        call('HDEL', P .. 'rk:' .. job.type, job.limit)
    end
end

local ENTER = {
    ready = enter_ready,
    running = enter_running,
    scheduled = function(job) call('ZADD', P .. 'sched:' .. job.type, job.due, job.id) end,
    blocked = function(job) call('ZADD', P .. 'blocked', 0, job.id) end,
}

local LEAVE = {
    ready = leave_ready,
    running = leave_running,
    scheduled = function(job) call('ZREM', P .. 'sched:' .. job.type, job.id) end,
    blocked = function(job) call('ZREM', P .. 'blocked', job.id) end,
}

-- Gives a job another status, changes its other fields, and moves it to the location of the status.
local function move(job, status, changes, front)
    local leave, enter = LEAVE[job.status], ENTER[status]
    if leave then leave(job) end
    if job.status == 'running' then changes.leased = changes.leased or false end
    count(job.type, job.status, -1)
    changes.status = status
    if status == 'ready' then changes.gen = call('INCR', P .. 'gen') end
    put(job, changes)
    count(job.type, status, 1)
    if enter then enter(job, front) end
end

-- The status of a job that is not running: by its open blockers and the time it is due.
local function resting_status(due, open, now)
    if open > 0 then return 'blocked' end
    return due > (now or NOW) and 'scheduled' or 'ready'
end
