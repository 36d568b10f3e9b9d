-- Delete chains with all their jobs, all or none. ARGV[1]: {ids, cascade}.
-- Answers with the deleted chains, in the order asked and then by id, and with the jobs that were running.

local asked = given(1)

local doomed, order, left = {}, {}, {}
for _, id in ipairs(asked.ids) do
    if not doomed[id] and is_first(load(id)) then
        doomed[id] = true
        order[#order + 1] = id
        left[#left + 1] = id
    end
end
local further = {}
while asked.cascade and #left > 0 do
    for _, id in ipairs(jobs_of(table.remove(left))) do
        for _, chain in ipairs(call('ZRANGE', P .. 'bl:' .. id, 0, -1)) do
            if not doomed[chain] then
                doomed[chain] = true
                further[#further + 1] = chain
                left[#left + 1] = chain
            end
        end
    end
end
table.sort(further)
for _, id in ipairs(further) do order[#order + 1] = id end

local references = {}
for _, chain in ipairs(order) do
    for _, id in ipairs(call('ZRANGE', P .. 'bb:' .. chain, 0, -1)) do
        local job = load(id)
        if job and not doomed[job.chain] then
            references[#references + 1] = chain
            references[#references + 1] = id
        end
    end
end
if #references > 0 then return refusal('referenced', cjson.encode(references)) end

local running = {}

for _, chain in ipairs(order) do delete_chain(chain, running) end
return {order, running}
