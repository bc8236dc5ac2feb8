-- What a call used whose reservation went with a lost board: counted once, in the day and the month of now.
-- KEYS: a mark of the attempt, which looks like a reservation, so that a rebuild which has not read of the attempt yet
-- counts it as well; the parts. ARGV: tokens, nano-dollars ('': unknown), then of each part '1' where tokens a
-- day are limited and '1' where dollars a month are. Returns 1, or 0 when it was counted before.
local now = quota_now()
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
for n = 2, #KEYS do
  local taken = {'-', '-', '-', '-', '-', '-', '-', '0', '-', '0'}
  if ARGV[2 * n - 1] == '1' then
    taken[7], taken[8] = string.format('%.0f', math.floor(now / QUOTA_DAY_US)), ARGV[1]
    quota_day(KEYS[n] .. ':day', taken[7], tonumber(ARGV[1]))
  end
  if ARGV[2 * n] == '1' and ARGV[2] ~= '' then
    taken[9], taken[10] = quota_month(now), ARGV[2]
    quota_budget(KEYS[n] .. ':usd', taken[9], tonumber(ARGV[2]))
  end
  redis.call('HSET', KEYS[1], KEYS[n], table.concat(taken, ' '))
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', 2 * QUOTA_DAY_US / 1000))
return 1
