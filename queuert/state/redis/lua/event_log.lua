-- name: read_events
-- Reads entries of the event log, from the one that has the event of a number; or else from the oldest, or with
-- `newest_first` from the newest. ARGV[1]: {number, newest_first, most, bytes}. It stops after so many events or bytes.
-- Returns the log's id, the numbers of its oldest and its newest event, and of each entry the number of its first event,
-- what is stored of it. A log begins with its first reader, if nothing has been written to it: a cursor has its id.

local params = decoded(1)
local stream, info = P .. 'events', P .. 'event_log'
local found = call('HMGET', info, 'id', 'last')
if not found[1] then
    found = {begin_log(), '0'}
end

local function number_of(entry)
    return tonumber(entry[1]:match('^%d+'))
end

local oldest = call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
local first = oldest and number_of(oldest) or tonumber(found[2]) + 1
local newest_first = params.newest_first
local from, stops = newest_first and '+' or '-', false
if params.number then
    local here = call('XREVRANGE', stream, params.number .. '-0', '-', 'COUNT', 1)[1]
    from = here and here[1] or from
    stops = not here and newest_first -- All events before this one have been dropped.
end
local answer, bytes, first_read = {found[1], text(first), found[2]}, 0, nil
while not stops do
    local entries = call(newest_first and 'XREVRANGE' or 'XRANGE', stream, from, newest_first and '-' or '+', 'COUNT', 20)
    stops = #entries < 20
    for _, entry in ipairs(entries) do
        local number = number_of(entry)
        first_read = first_read or number
        if bytes > params.bytes or math.abs(number - first_read) > params.most + EVENTS_OF_ENTRY then
            stops = true
            break
        end
        bytes = bytes + #entry[2][2]
        answer[#answer + 1] = {text(number), entry[2][2]}
        from = '(' .. entry[1]
    end
end
return answer

-- name: check_event_log
-- Returns which command of the event log the user may not call, and why; nothing if he may call all. It writes nothing:
-- no entry can have the id 0-0.

local stream = P .. 'events'
local answers = {
    xadd = redis.pcall('XADD', stream, '0-0', 'e', ''), xtrim = redis.pcall('XTRIM', stream, 'MINID', '0'),
    xrange = redis.pcall('XRANGE', stream, '-', '-'), xrevrange = redis.pcall('XREVRANGE', stream, '-', '-'),
}
for command, answer in pairs(answers) do
    local refused = type(answer) == 'table' and answer.err
    if refused and (refused:find('no permissions', 1, true) or refused:find("can't run this command", 1, true)) then
        return command .. ': ' .. refused
    end
end
return ''

-- name: event_log_settings
-- Reads the settings of the event log, as they are stored, each field followed by its value.

return call('HGETALL', P .. 'event_log')

-- name: set_event_level
-- Sets the level of these types, or that of all others. ARGV[1]: {level, types}. Without a level, it removes those of the
-- types.

local params = decoded(1)
local fields = {}
for _, type in ipairs(params.types or {}) do fields[#fields + 1] = 'level:' .. type end
if not params.types then fields[1] = 'level' end
for _, field in ipairs(fields) do
    if params.level then
        call('HSET', P .. 'event_log', field, params.level)
    else
        call('HDEL', P .. 'event_log', field)
    end
end
return #fields

-- name: set_event_retention
-- Sets how many days, and how many events, the log keeps. ARGV[1]: {days, most}; what is missing stays.

local params = decoded(1)
if params.days then call('HSET', P .. 'event_log', 'days', params.days) end
if params.most then call('HSET', P .. 'event_log', 'most', text(params.most)) end
return 1

-- name: maintain_event_log
-- Drops the oldest entries of the event log: those of days that it does not keep, and those beyond the number of events
-- that it keeps. ARGV[1]: {limit}, in entries. Returns the number of events that were dropped, and whether there may be
-- more.

local stream = P .. 'events'
local days, most, last = unpack(call('HMGET', P .. 'event_log', 'days', 'most', 'last'))
if not last then return {0, 0} end
local DAY = 86400000000
local before = (math.floor(NOW / DAY) - tonumber(days or KEPT_DAYS)) * DAY
local kept_from = tonumber(last) - tonumber(most or MOST_EVENTS) + 1
local function number_of(entry) return tonumber(entry[1]:match('^%d+')) end
local function time_of(entry) return tonumber(entry[2][2]:match('^%[(%d+)')) end

local oldest, cut, looked, from, limit = nil, nil, 0, '-', decoded(1).limit
while not cut and looked < limit do
    local entries = call('XRANGE', stream, from, '+', 'COUNT', 20)
    for _, entry in ipairs(entries) do
        local number = number_of(entry)
        oldest = oldest or number
        if time_of(entry) >= before and number >= kept_from then
            cut = number
            break
        end
    end
    looked = looked + #entries
    if #entries < 20 then cut = cut or tonumber(last) + 1 else from = '(' .. entries[20][1] end
end
local up_to = cut or tonumber(from:match('%d+')) + 1
if not oldest or up_to <= oldest then return {0, 0} end
call('XTRIM', stream, 'MINID', text(up_to) .. '-0')
local left = call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
return {(left and number_of(left) or tonumber(last) + 1) - oldest, cut and 0 or 1}
