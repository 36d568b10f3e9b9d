-- What workers did, by minute (60) and hour (3600). An hour is of all workers together, as the empty worker.
--
-- activity:{seconds}:{begin}  HASH of type and worker, as pair(type, worker), to "report index:number ..."
-- periods:{seconds}           ZSET of the begins (seconds since 1970) of which there is such a hash

-- Adds numbers, unless their report is not above the last one that was added there. `report` 0 is always added.
local function add_activity(seconds, begin, type, worker, report, numbers)
    local key, field = P .. 'activity:' .. seconds .. ':' .. begin, pair(type, worker)
    local stored, sums = call('HGET', key, field), {}
    if stored then
        if report > 0 and tonumber(string.match(stored, '^%d+')) >= report then return end
        numbers = stored .. ' ' .. numbers
    end
    for index, number in string.gmatch(numbers, '(%d+):(%d+)') do sums[index] = (sums[index] or 0) + tonumber(number) end
    local parts = {text(report)}
    for index, number in pairs(sums) do parts[#parts + 1] = index .. ':' .. text(number) end
    call('HSET', key, field, table.concat(parts, ' '))
    call('ZADD', P .. 'periods:' .. seconds, begin, begin)
end

-- Adds the minutes ({begin, type, numbers}) of a report of a worker.
local function add_report(worker, report)
    for _, minute in ipairs(report and report.minutes or {}) do
        add_activity('60', minute[1], minute[2], worker, report.number, minute[3])
    end
end

-- The type and the worker of a field.
local function pair_of(field)
    local length, rest = string.match(field, '^(%d+):(.*)$')
    return string.sub(rest, 1, tonumber(length)), string.sub(rest, tonumber(length) + 2)
end

local function drop_period(seconds, begin)
    call('DEL', P .. 'activity:' .. seconds .. ':' .. begin)
    call('ZREM', P .. 'periods:' .. seconds, begin)
end
