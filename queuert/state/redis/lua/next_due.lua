-- Microseconds until the next job of these types is due; -1 when none is scheduled. ARGV[1]: list of types.

local next_at
for _, type in ipairs(given(1)) do
    if call('HEXISTS', P .. 'paused', type) == 0 then
        if tonumber(call('HGET', P .. 'n:' .. type, 'ready') or 0) > 0 then return '0' end
        local first = call('ZRANGE', P .. 'sched:' .. type, 0, 0, 'WITHSCORES')
        if first[2] then next_at = math.min(next_at or 1 / 0, tonumber(first[2])) end
    end
end
return next_at and text(math.max(0, next_at - NOW)) or '-1'
