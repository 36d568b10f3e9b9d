-- Read jobs. ARGV[1]: list of ids. Answers with the time and, for each, its id, hash, input, output and error.

local answer = {text(NOW)}
for _, id in ipairs(given(1)) do
    local flat = call('HGETALL', P .. 'j:' .. id)
    answer[#answer + 1] = #flat == 0 and 0
        or {id, flat, call('GET', P .. 'i:' .. id), call('GET', P .. 'o:' .. id), call('GET', P .. 'e:' .. id)}
end
return answer
