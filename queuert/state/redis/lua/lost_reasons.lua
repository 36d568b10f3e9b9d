-- Why leases do not hold their jobs. ARGV[1]: list of {id, token}. '' for those that do, or that ended theirs.

local answer = {}
for at, asked in ipairs(given(1)) do answer[at] = lost_reason(load(asked[1]), asked[2]) end
return answer
