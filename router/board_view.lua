-- Everything about a job, and its result; with a channel, watch it from now on.
-- ARGV: prefix, id, channel ('' is none), whether also when it was deleted or its time is over (1 | 0)
local job = KEYS[1]
local state = redis.call('HGET', job, 'state')
if not state then return false end
if ARGV[3] ~= '' and not TERMINAL[state] then
  local watchers = redis.call('HGET', job, 'watchers') or ''
  if not string.find(',' .. watchers .. ',', ',' .. ARGV[3] .. ',', 1, true) and #watchers < 2000 then
    redis.call('HSET', job, 'watchers', watchers == '' and ARGV[3] or watchers .. ',' .. ARGV[3])
  end
end
local gone = redis.call('HGET', job, 'gone')
if gone and ARGV[4] == '0' and tonumber(gone) <= now_ms() then return false end
return {redis.call('HGETALL', job), redis.call('GET', P .. 'result:' .. ARGV[2])}
