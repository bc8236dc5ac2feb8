-- Rebuild: a job that the log says was over at a moment. ARGV: prefix, id, state, keep ms, at ms. Returns 1 | 0
local h = redis.call('HMGET', KEYS[1], 'state', 'finished', 'revived_at')
local state, at = h[1], tonumber(ARGV[5])
if h[3] and tonumber(h[3]) > at and ARGV[3] == 'failed' then return 0 end -- it was run again since
-- One that failed may have been run again by an operator; then the log has both ends.
if state and TERMINAL[state] and not (state == 'failed' and ARGV[3] == 'completed') then
  if state == 'failed' and at > tonumber(h[2] or at) then redis.call('HSET', KEYS[1], 'finished', ARGV[5]) end
  return 0
end
redis.call('HSET', KEYS[1], 'state', ARGV[3], 'gone', '0', 'finished', ARGV[5])
redis.call('HDEL', KEYS[1], 'owner', 'lease', 'cancel', 'open')
for _, set in ipairs({'running', 'unpublished'}) do redis.call('ZREM', P .. set, ARGV[2]) end
unlist(KEYS[1], ARGV[2])
uncount(KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
line_ended(KEYS[1], ARGV[2], ARGV[3], now_ms())
return 1
