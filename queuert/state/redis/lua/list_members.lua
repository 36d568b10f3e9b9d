-- Ids of a chain's jobs by their index, or of the jobs that a chain blocks by id.
-- ARGV[1]: {chain, blocked, after, oldest_first, limit}. Answers with {key, id} for each.

local asked = given(1)
local answer = {}
if asked.blocked then
    local key, ids = P .. 'bb:' .. asked.chain, nil
    if asked.oldest_first then
        ids = call('ZRANGEBYLEX', key, asked.after and '(' .. asked.after or '-', '+', 'LIMIT', 0, asked.limit)
    else
        ids = call('ZREVRANGEBYLEX', key, asked.after and '(' .. asked.after or '+', '-', 'LIMIT', 0, asked.limit)
    end
    for at, id in ipairs(ids) do answer[at] = {'', id} end
    return answer
end
local key, after = P .. 'c:' .. asked.chain, asked.after
if call('EXISTS', key) == 0 then
    local alone = is_first(load(asked.chain))
    local behind = not after or (asked.oldest_first and after < 0) or (not asked.oldest_first and after > 0)
    return alone and behind and {{'0', asked.chain}} or {}
end
local flat
if asked.oldest_first then
    flat = call('ZRANGEBYSCORE', key, after and '(' .. after or '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, asked.limit)
else
    flat = call('ZREVRANGEBYSCORE', key, after and '(' .. after or '+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, asked.limit)
end
for at = 1, #flat, 2 do answer[#answer + 1] = {flat[at + 1], flat[at]} end
return answer
