-- Extend leases that still hold. ARGV[1]: list of {id, token, microseconds, progress if there is news}. Answers with 1 or 0 for each.

local answer = {}
for at, asked in ipairs(given(1)) do
    local job = load(asked[1])
    answer[at] = 0
    if holds(job, asked[2]) then
        put(job, {leased = NOW + asked[3], progress = asked[4]})
        call('ZADD', P .. 'lease:' .. job.type, job.leased, job.id)
        answer[at] = 1
    end
end
return answer
