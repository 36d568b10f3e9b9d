-- Forget a worker that has stopped. ARGV[1]: {id}.

local id = given(1)[1]
call('ZREM', P .. 'workers:until', id)
return call('HDEL', P .. 'workers', id)
