-- Jobs by type and status. ARGV[1]: list of types, all if empty. The numbers are kept, so they are exact and cheap.
-- Answers with {type, status, count, microseconds since the oldest became due or -1} for each.

local function oldest(type, status)
    if status == 'ready' then
        local since
        for _, rank in ipairs(call('ZRANGE', P .. 'ranks:' .. type, 0, -1)) do
            local list = P .. 'w:' .. rank .. ':' .. type
            local entry = call('LINDEX', list, 0)
            while entry and BUDGET > 0 and not still_waits(entry) do
                BUDGET = BUDGET - 1
                call('LPOP', list)
                entry = call('LINDEX', list, 0)
            end
            local due = entry and entry:match('^%d+:(%d+):')
            if due then since = math.min(since or 1 / 0, tonumber(due)) end
        end
        local first = call('ZRANGE', P .. 'sched:' .. type, 0, 0, 'WITHSCORES')
        if first[2] and tonumber(first[2]) <= NOW then since = math.min(since or 1 / 0, tonumber(first[2])) end
        return since
    end
    if status == 'scheduled' then
        local first = call('ZRANGEBYSCORE', P .. 'sched:' .. type, '(' .. text(NOW), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
        return first[2] and tonumber(first[2])
    end
    return nil
end

local types = given(1)
if #types == 0 then types = call('SMEMBERS', P .. 'types') end
table.sort(types)
local answer, seen = {}, {}
for _, type in ipairs(types) do
    if not seen[type] then
        seen[type] = true
        local found = {}
        local flat = call('HGETALL', P .. 'n:' .. type)
        for at = 1, #flat, 2 do found[flat[at]] = tonumber(flat[at + 1]) end
        local due = call('ZCOUNT', P .. 'sched:' .. type, '-inf', text(NOW))
        found.ready = (found.ready or 0) + due
        found.scheduled = (found.scheduled or 0) - due
        local statuses = {}
        for status in pairs(found) do statuses[#statuses + 1] = status end
        table.sort(statuses)
        for _, status in ipairs(statuses) do
            if found[status] > 0 then
                local since = oldest(type, status)
                answer[#answer + 1] = {type, status, found[status], since and text(math.max(0, NOW - since)) or '-1'}
            end
        end
    end
end
return answer
