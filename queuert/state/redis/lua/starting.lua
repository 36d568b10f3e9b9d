-- name: start
-- Writes the first jobs of new chains, all or none, or finds the chains of which they are duplicates. ARGV[1]: list of
-- new jobs; ARGV[2...]: their inputs. Everything is checked before anything is written.

local jobs = decoded(1)
local in_batch, written, taken, stands_in, conflicts, in_the_way = {}, {}, {}, {}, {}, {}
local debounces, debounced = {}, {}

for _, new in ipairs(jobs) do in_batch[new.id] = true end
for _, new in ipairs(jobs) do
    for _, chain in ipairs(new.blockers or {}) do
        if in_batch[chain] and is_open(chain) == nil then return refusal('chain_not_found', chain) end
    end
end

for at, new in ipairs(jobs) do
    local params = new.deduplication
    local slot = params and pair(new.type, params.key)
    if slot and taken[slot] then
        -- The first start of the key has the input of the last one already.
        stands_in[at] = taken[slot].start
        debounced[at] = params.debounce and taken[slot].debounce
    else
        local found = params and duplicate_of(new, NOW)
        if found and params.debounce then debounces[at], debounced[at] = found, true end
        if not found and written[new.id] then
            if new.attach and jobs[written[new.id]].type == new.type then
                stands_in[at] = written[new.id]
            elseif new.attach then
                return refusal('type_mismatch', new.id, new.type, jobs[written[new.id]].type)
            else
                conflicts[#conflicts + 1] = new.id
            end
        elseif not found then
            found = load(new.id)
            if found and is_first(found) and has_expired(found) and not is_needed(found.id) then
                in_the_way[#in_the_way + 1] = found.id
                found = nil
            end
            if found and not (new.chosen and new.attach and is_first(found) and not has_expired(found)) then
                conflicts[#conflicts + 1] = new.id
            elseif found and found.type ~= new.type then
                return refusal('type_mismatch', new.id, new.type, found.type)
            end
        end
        if found then
            stands_in[at] = found
        elseif not stands_in[at] then
            local missing = missing_blocker(new)
            if missing then return refusal('chain_not_found', missing) end
            written[new.id] = at
        end
        if slot then taken[slot] = {start = stands_in[at] or at, debounce = params.debounce} end
    end
end
if #conflicts > 0 then
    -- A refusal may have thousands of ids, which are too many for unpack().
    local refused = refusal('id_conflict')
    for _, id in ipairs(conflicts) do refused[#refused + 1] = id end
    return refused
end

for _, chain in ipairs(in_the_way) do prune_chain(chain) end
for at, waiting in pairs(debounces) do debounce(waiting, jobs[at]) end
local results, made = {}, {}
for at, new in ipairs(jobs) do
    local other = stands_in[at]
    if not other then
        made[at] = write_job(new, NOW + at - 1)
        results[at] = job_answer(made[at])
    else
        results[at] = job_answer(type(other) == 'number' and made[other] or other, true, debounced[at])
    end
end
return packed(results)
