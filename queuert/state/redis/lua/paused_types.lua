-- The paused types, each followed by what is stored of it.

return call('HGETALL', P .. 'paused')
