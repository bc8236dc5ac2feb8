-- Rebuild: a job that the log says is over. ARGV: prefix, id, state, keep ms. Returns 1 | 0
local state = redis.call('HGET', KEYS[1], 'state')
-- One that failed may have been run again by an operator; then the log has both ends.
if state and TERMINAL[state] and not (state == 'failed' and ARGV[3] == 'completed') then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[3], 'gone', '0')
redis.call('HDEL', KEYS[1], 'owner', 'lease', 'cancel', 'open')
for _, set in ipairs({'running', 'unpublished'}) do redis.call('ZREM', P .. set, ARGV[2]) end
unlist(KEYS[1], ARGV[2])
uncount(KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
line_ended(KEYS[1], ARGV[2], ARGV[3], now_ms())
return 1
