-- No more lines are made into jobs. ARGV: prefix, id, owner, how it will end, errors (JSON, '' is none). Returns 1 | 0
if not is_mine() or redis.call('HGET', key, 'state') ~= 'in_progress' then return 0 end
redis.call('HSET', key, 'ending', ARGV[4])
if ARGV[5] ~= '' then redis.call('HSET', key, 'errors', ARGV[5]) end
set_state('finalizing', now_ms())
return 1
