-- Rebuild: what the ledger and open reservations say that a part has used. KEYS: the part.
-- ARGV: month, nano-dollars, day, tokens. Where more is known already, that stays.
local function at_least(key, field, least, add)
  local more = tonumber(least) - tonumber(redis.call('HGET', key, field) or '0')
  if more > 0 then add(key, field, more) end
end
at_least(KEYS[1] .. ':usd', ARGV[1], ARGV[2], quota_budget)
at_least(KEYS[1] .. ':day', ARGV[3], ARGV[4], quota_day)
return 1
