-- Claim no more jobs of some types. ARGV[1]: list of types; ARGV[2]: the reason, if there is one.
-- A type that is paused stays so since then, and keeps its reason unless there is another.

for _, type in ipairs(given(1)) do
    local stored = call('HGET', P .. 'paused', type)
    local pause = stored and cjson.decode(stored) or {at = text(NOW)}
    pause.reason = ARGV[2] or pause.reason
    call('HSET', P .. 'paused', type, cjson.encode(pause))
end
return 1
