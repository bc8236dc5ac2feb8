-- Rebuild: what the ledger and open reservations say that a part has used.
-- KEYS: the part. ARGV: month, nano-dollars, day, tokens, exactly ('1') or at least so much.
local function restore(key, field, known, add)
  local more = tonumber(known) - tonumber(redis.call('HGET', key, field) or '0')
  if more > 0 or (ARGV[5] == '1' and more < 0) then add(key, field, more) end
end
restore(KEYS[1] .. ':usd', ARGV[1], ARGV[2], quota_budget)
restore(KEYS[1] .. ':day', ARGV[3], ARGV[4], quota_day)
return 1
