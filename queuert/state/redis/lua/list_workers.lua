-- What the live workers told last.

local answer = {}
for at, id in ipairs(call('ZRANGEBYSCORE', P .. 'workers:until', '(' .. text(NOW), '+inf')) do
    answer[at] = call('HGET', P .. 'workers', id)
end
return answer
