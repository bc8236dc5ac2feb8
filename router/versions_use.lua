-- Use a correction that is there; 0 is none. ARGV: its number. Returns 1, or 0 when it is not there.
if ARGV[1] ~= '0' and redis.call('HEXISTS', KEYS[1], 'data:' .. ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'used', ARGV[1])
return 1
