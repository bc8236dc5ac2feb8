-- Pieces of a stream, from the job's owner. ARGV: prefix, id, name, owner, ttl ms, attempt, pieces... Returns 1 | 0
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[4] then return 0 end
local key = P .. 'chunks:' .. ARGV[2]
for i = 7, #ARGV do redis.call('XADD', key, 'MAXLEN', '~', 50000, '*', ARGV[6], ARGV[i]) end
redis.call('PEXPIRE', key, ARGV[5])
wake(KEYS[1], ARGV[3])
return 1
