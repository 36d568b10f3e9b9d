-- Claim jobs of some types again. ARGV[1]: list of types. Answers with those that were paused.

local resumed = {}
for _, type in ipairs(given(1)) do
    if call('HDEL', P .. 'paused', type) == 1 then resumed[#resumed + 1] = type end
end
return resumed
