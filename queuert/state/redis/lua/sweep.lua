-- Release blocked jobs all of whose blockers have closed. ARGV[1]: {cursor, limit, seed}: looks at so many, by id.
-- Without a cursor, what holders and lists are left with is mended first.
-- Answers with where to go on ('' at the end) and {id, type} of those released.

local asked = given(1)
if not asked.cursor then
    math.randomseed(asked.seed)
    for _, holder in ipairs(call('SMEMBERS', P .. 'holders')) do mend_holder(holder) end
    for _, type in ipairs(call('SMEMBERS', P .. 'types')) do compact(type) end
end
local from = asked.cursor and '(' .. asked.cursor or '-'
local ids = call('ZRANGEBYLEX', P .. 'blocked', from, '+', 'LIMIT', 0, asked.limit)
local released = {}
for _, id in ipairs(ids) do
    local job, open = load(id), false
    if job then
        for _, chain in ipairs(call('ZRANGE', P .. 'bl:' .. id, 0, -1)) do
            open = open or stands_open(chain)
        end
        if not open then
            call('DEL', P .. 'bo:' .. id)
            local due = math.max(job.due, NOW)
            move(job, resting_status(job.due, 0), {open = 0, due = due})
            released[#released + 1] = {id, job.type}
        end
    else
        call('ZREM', P .. 'blocked', id)
    end
end
return {#ids == asked.limit and ids[#ids] or '', released}
