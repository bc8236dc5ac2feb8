-- Renew the leases of calls that run, and end those of calls that have ended.
-- ARGV: prefix, lease ms, how many run, then replica and id of each; then replica, id and tokens of each that has ended
-- Returns 1
local now = now_ms()
since(now, tonumber(ARGV[2]))
local n = tonumber(ARGV[3])
for i = 4, 2 + 2 * n, 2 do
  redis.call('ZADD', P .. 'places:' .. ARGV[i], whole(now + tonumber(ARGV[2])), ARGV[i + 1])
  redis.call('PEXPIRE', P .. 'places:' .. ARGV[i], KEEP_MS)
end
for i = 4 + 2 * n, #ARGV, 3 do leave(ARGV[i], ARGV[i + 1], now, ARGV[i + 2]) end
return 1
