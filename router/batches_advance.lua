-- These lines were made into jobs, or refused. ARGV: prefix, id, owner, offset in the input before and after them,
--   refused ones as they go to the error file...
-- Returns 1 | 0 (another's, or another was here)
if not is_mine() or (redis.call('HGET', key, 'offset') or '0') ~= ARGV[4] then return 0 end
redis.call('HSET', key, 'offset', ARGV[5])
for i = 6, #ARGV do redis.call('RPUSH', key .. ':ended', ARGV[i]) end
if #ARGV > 5 then
  redis.call('HINCRBY', key, 'failed', #ARGV - 5)
  batch_progress(key, id, now_ms())
end
return 1
