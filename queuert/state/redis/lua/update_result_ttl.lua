-- Let closed chains expire so long from now. ARGV[1]: {ids, ttl}. Answers with what became of each.

local asked, answer = given(1), {}
for at, id in ipairs(asked.ids) do
    local first = load(id)
    if not is_first(first) or has_expired(first) then
        answer[at] = 'not_found'
    elseif first.chain_status == 'open' then
        answer[at] = 'open'
    else
        put(first, {expires = NOW + asked.ttl})
        call('ZADD', P .. 'expires', first.expires, id)
        answer[at] = 'updated'
    end
end
return answer
