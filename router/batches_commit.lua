-- Lines were written. ARGV: prefix, id, owner, lines that had been before and these now, offset in the input before and
--   after, paths of the segments of the output and of the error file ('' is none)
-- Returns 1 | 0 (another's, or another was here)
local offset, count = redis.call('HGET', key, 'offset') or '0', tonumber(ARGV[5])
if not is_mine() or (redis.call('HGET', key, 'written') or '0') ~= ARGV[4] or offset ~= ARGV[6] then return 0 end
local now = now_ms()
-- What a job left on the board is in the segment now; its tombstone stays.
for _, ended in ipairs(count > 0 and redis.call('LRANGE', key .. ':ended', 0, count - 1) or {}) do
  if #ended == 26 then
    local job = P .. 'job:' .. ended
    redis.call('HSET', job, 'gone', '0')
    redis.call('DEL', P .. 'result:' .. ended, P .. 'chunks:' .. ended)
    redis.call('ZREM', P .. 'jobs', ended)
    local result = redis.call('HGET', job, 'result_at')
    if result then redis.call('ZADD', P .. 'objects', 'XX', whole(now), cjson.decode(result).path) end
  end
end
if count > 0 then redis.call('LTRIM', key .. ':ended', count, -1) end
redis.call('HSET', key, 'written', whole(tonumber(ARGV[4]) + count), 'offset', ARGV[7])
if ARGV[8] ~= '' then redis.call('RPUSH', key .. ':out', ARGV[8]) end
if ARGV[9] ~= '' then redis.call('RPUSH', key .. ':err', ARGV[9]) end
return 1
