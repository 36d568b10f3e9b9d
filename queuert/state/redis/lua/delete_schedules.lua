-- Delete recurring schedules. ARGV[1]: list of names. How many there were.

local deleted = 0
for _, name in ipairs(given(1)) do deleted = deleted + call('HDEL', P .. 'schedules', name) end
return deleted
