-- Make scheduled jobs due now, all or none. ARGV[1]: list of ids. Answers with {id, type} for each.

local ids, answer = given(1), {}
for at, id in ipairs(ids) do
    local job = load(id)
    if not job then return refusal('job_not_found', id) end
    if job.status ~= 'scheduled' and job.status ~= 'ready' then return refusal('not_triggerable', id, job.status) end
    answer[at] = {id, job.type}
end
for _, id in ipairs(ids) do
    local job = load(id)
    if job.status == 'scheduled' then move(job, 'ready', {due = math.min(job.due, NOW)}) end
end
return answer
