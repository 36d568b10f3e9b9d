-- Pause recurring schedules, or let them go on. ARGV[1]: {names, paused}. How many there are of these names.

local asked, found = given(1), 0
for _, name in ipairs(asked.names) do
    local stored = call('HGET', P .. 'schedules', name)
    if stored then
        local schedule = cjson.decode(stored)
        schedule.paused = asked.paused
        call('HSET', P .. 'schedules', name, cjson.encode(schedule))
        found = found + 1
    end
end
return found
