-- Functions that the management operations share.

-- The result of one chain: id, type, status, its last job and the status before, whether it was written, the types that
-- became due, the microseconds that it took if it was closed now.
local function chain_update(chain, tail, previous_status, status, written, due_types, took)
    return {
        chain.id, chain.type, status, tail.id, tail.type, previous_status, written and 1 or 0, listed(due_types or {}),
        took or false, tail.atrace or tail.trace or false,
    }
end

-- Finishes a job for a client: the lease is lost with its token.
local function finish_workerless(job, status, changes)
    changes.finished = NOW
    changes.token = false
    call('DEL', P .. 'e:' .. job.id)
    move(job, status, changes)
end

-- Returns the first and the last jobs of chains, each chain once; or the id of one that does not exist.
local function chains_of(ids)
    local found = {}
    for _, id in ipairs(ids) do
        if not found[id] then
            local first = load(id)
            if not is_first(first) then return nil, id end
            local tail = tail_of(id)
            found[id] = {first = first, tail = tail.id == id and first or tail}
        end
    end
    return found
end

-- Returns the types that no earlier chain of the same call has reported.
local function fresh(due_types, named_types)
    local new = {}
    for type in pairs(due_types) do
        if not named_types[type] then new[type] = true end
        named_types[type] = true
    end
    return new
end
