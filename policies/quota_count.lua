-- What a call used whose reservation went with a lost board: counted once, in the day and the month of now.
-- KEYS: a mark of the attempt, the parts. ARGV: tokens, nano-dollars ('': unknown), then of each part '1' where tokens a
-- day are limited and '1' where dollars a month are. Returns 1, or 0 when it was counted before.
local now = quota_now()
if not redis.call('SET', KEYS[1], '1', 'NX', 'PX', 2 * QUOTA_DAY_US / 1000) then return 0 end
for n = 2, #KEYS do
  if ARGV[2 * n - 1] == '1' then
    quota_day(KEYS[n] .. ':day', string.format('%.0f', math.floor(now / QUOTA_DAY_US)), tonumber(ARGV[1]))
  end
  if ARGV[2 * n] == '1' and ARGV[2] ~= '' then
    quota_budget(KEYS[n] .. ':usd', quota_month(now), tonumber(ARGV[2]))
  end
end
return 1
