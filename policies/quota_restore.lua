-- Rebuild: what the ledger and open reservations say that a part has used. KEYS: the part.
-- ARGV: month, nano-dollars, day, tokens, then what was there when that was found out: nano-dollars, tokens ('': whatever
-- is). Where more is known already, that stays. Returns 1, or 0 when something else is there by now, and nothing is written.
local function is_seen(key, field, seen)
  return seen == '' or tonumber(redis.call('HGET', key, field) or '0') == tonumber(seen)
end
if not (is_seen(KEYS[1] .. ':usd', ARGV[1], ARGV[5]) and is_seen(KEYS[1] .. ':day', ARGV[3], ARGV[6])) then return 0 end
local function at_least(key, field, least, add)
  local more = tonumber(least) - tonumber(redis.call('HGET', key, field) or '0')
  if more > 0 then add(key, field, more) end
end
at_least(KEYS[1] .. ':usd', ARGV[1], ARGV[2], quota_budget)
at_least(KEYS[1] .. ':day', ARGV[3], ARGV[4], quota_day)
return 1
