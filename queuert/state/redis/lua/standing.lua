-- Why a lease does not hold its job now; '' where it does. ARGV[1]: {id, token}.

local asked = given(1)
local job = load(asked[1])
if holds(job, asked[2]) then return '' end
local reason = lost_reason(job, asked[2])
return reason == '' and 'already_completed' or reason
