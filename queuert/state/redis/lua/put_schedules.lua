-- Write recurring schedules by name. ARGV[1]: list of schedules. One that is there keeps its pause and its latest tick;
-- if its times are the same, also its next tick.

for _, new in ipairs(given(1)) do
    local key, name = P .. 'schedules', new.name
    local stored = call('HGET', key, name)
    if stored then
        local old = cjson.decode(stored)
        new.paused, new.last_at = old.paused, old.last_at
        if old.cron == new.cron and old.every == new.every and old.time_zone == new.time_zone then
            new.next_at = old.next_at
        end
    end
    call('HSET', key, name, cjson.encode(new))
end
return #given(1)
