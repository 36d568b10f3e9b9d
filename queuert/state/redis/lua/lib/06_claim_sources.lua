-- The sources of a claim. A source has `head()`, which returns its best job or nil, and `take(job)`, which moves that
-- job to the holder's list. So a claim reads the jobs that it takes, and one more of each source. If `first` is set,
-- only ready jobs from that rank on are read.

local BUDGET = 2000 -- The largest number of dead entries that one script drops.

local function still_waits(entry)
    local gen, _, id = entry:match('^(%d+):(%d+):(.*)$')
    local job = load(id)
    return job and job.status == 'ready' and text(job.gen) == gen and job or nil
end

-- The rank of a job in a claim that begins at a rank. Scheduled jobs, which are found by their time, count at that rank
-- at best.
local function rank_in_claim(job, first)
    local rank = rank_of(job)
    return first and rank < first and first or rank
end

-- The waiting lists of a type, best rank first.
local function lists_of(type, holder, first)
    local source = {}
    local ranks = call('ZRANGEBYSCORE', P .. 'ranks:' .. type, first and text(first) or '-inf', '+inf')
    local at, best = 1, nil

    function source.head()
        while not best and ranks[at] do
            local list = P .. 'w:' .. ranks[at] .. ':' .. type
            local entry = call('LINDEX', list, 0)
            if not entry then
                call('ZREM', P .. 'ranks:' .. type, ranks[at])
                at = at + 1
            else
                best = still_waits(entry)
                if not best then
                    if BUDGET <= 0 then return nil end
                    BUDGET = BUDGET - 1
                    call('LPOP', list)
                end
            end
        end
        return best
    end

    function source.take(job)
        call('LMOVE', P .. 'w:' .. ranks[at] .. ':' .. type, P .. 'p:' .. holder, 'LEFT', 'RIGHT')
        best = nil
    end

    return source
end

-- Removes a job from its location.
local function take_out(job, holder)
    LEAVE[job.status](job)
    call('RPUSH', P .. 'p:' .. holder, entry_of(job))
end

-- A source of jobs that were read before, best first.
local function listed_source(jobs, holder, first)
    table.sort(jobs, function(one, other)
        local mine, its = rank_in_claim(one, first), rank_in_claim(other, first)
        if mine ~= its then return mine < its end
        if one.due ~= other.due then return one.due < other.due end
        return (one.gen or 0) < (other.gen or 0)
    end)
    local at = 1
    return {
        head = function() return jobs[at] end,
        take = function(job)
            take_out(job, holder)
            at = at + 1
        end,
    }
end

-- A source of the ready jobs of a type that have a limit key.
local function keyed_of(type, holder, first)
    local source, key, best = {}, P .. 'kz:' .. type, nil
    local from = first and '[' .. rank_text(first) or '-'
    function source.head()
        while not best do
            local member = call('ZRANGEBYLEX', key, from, '+', 'LIMIT', 0, 1)[1]
            if not member then return nil end
            best = load(member:match('^%d+:%d+:%d+:(.*)$'))
            -- Scripts leave no member without its job, but manual edits and evictions do; without this the loop would
            -- not end.
            if not best then call('ZREM', key, member) end
        end
        return best
    end
    function source.take(job)
        take_out(job, holder)
        best = nil
    end
    return source
end

-- The scheduled jobs of a type that are due, the longest due first.
local function due_of_type(type, limit)
    local jobs = {}
    for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'sched:' .. type, '-inf', text(NOW), 'LIMIT', 0, limit)) do
        local job = load(id)
        if job then jobs[#jobs + 1] = job else call('ZREM', P .. 'sched:' .. type, id) end
    end
    return jobs
end
