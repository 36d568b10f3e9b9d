-- All recurring schedules and the time. Answers with the time and what is stored of each.

local answer = {text(NOW)}
for _, stored in ipairs(call('HVALS', P .. 'schedules')) do answer[#answer + 1] = stored end
return answer
